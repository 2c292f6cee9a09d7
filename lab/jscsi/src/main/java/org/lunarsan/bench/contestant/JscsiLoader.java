package org.lunarsan.bench.contestant;

import java.io.IOException;
import java.io.InputStream;
import java.util.Set;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Loads the published jSCSI with two additions, without which it cannot use a target that conforms
 * to SAM-5. Before it requests the capacity, unit attentions are taken, which it does not handle.
 * The LUN of its commands is that of the URL, instead of always 0 (where tgt has its controller).
 * The rest is unchanged, including all code for reads and writes.
 *
 * <p>Threads: as any class loader.
 */
final class JscsiLoader extends ClassLoader {
    private static final String THEIRS = "org.jscsi.";
    private static final String OURS = Contestant.class.getPackageName() + ".Jscsi";
    private static final String ATTENTIONS = JscsiAttentions.class.getName().replace('.', '/');
    private static final String STATES = "org/jscsi/initiator/connection/state/";
    private static final String CONNECTION = "Lorg/jscsi/initiator/connection/Connection;";
    /** Classes whose objects get the LUN when they are created. */
    private static final Set<String> WITH_LUN = Set.of("org/jscsi/parser/scsi/SCSICommandParser",
            "org/jscsi/parser/data/DataOutParser");
    private static final String ASKS_CAPACITY = STATES + "CapacityRequestState";

    JscsiLoader() {
        super("jscsi", JscsiLoader.class.getClassLoader());
    }

    /**
     * Returns the contestant, logged in.
     *
     * @param url {@code iscsi://HOST:PORT/TARGET/LUN}; one LUN for all classes of one loader
     * @param segmentBytes MaxRecvDataSegmentLength
     */
    Contestant open(String url, int segmentBytes) throws ReflectiveOperationException {
        return (Contestant) loadClass(JscsiContestant.class.getName())
                .getConstructor(String.class, int.class).newInstance(url, segmentBytes);
    }

    @Override
    protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
        if (!name.startsWith(THEIRS) && !name.startsWith(OURS)) {
            return super.loadClass(name, resolve);
        }
        synchronized (getClassLoadingLock(name)) {
            Class<?> known = findLoadedClass(name);
            return known != null ? known : define(name);
        }
    }

    private Class<?> define(String name) throws ClassNotFoundException {
        String path = name.replace('.', '/');
        try (InputStream from = getParent().getResourceAsStream(path + ".class")) {
            if (from == null) {
                throw new ClassNotFoundException(name);
            }
            byte[] code = added(path, from.readAllBytes());
            return defineClass(name, code, 0, code.length);
        } catch (IOException failed) {
            throw new ClassNotFoundException(name, failed);
        }
    }

    private static byte[] added(String path, byte[] code) {
        if (!WITH_LUN.contains(path) && !path.equals(ASKS_CAPACITY)) {
            return code;
        }
        ClassReader reader = new ClassReader(code);
        ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
        reader.accept(new ClassVisitor(Opcodes.ASM9, writer) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String descriptor,
                    String signature, String[] exceptions) {
                MethodVisitor method =
                        super.visitMethod(access, name, descriptor, signature, exceptions);
                if (WITH_LUN.contains(path)) {
                    return name.equals("<init>") ? withLun(path, method) : method;
                }
                return name.equals("execute") ? afterAttentions(path, method) : method;
            }
        }, 0);
        return writer.toByteArray();
    }

    private static MethodVisitor withLun(String path, MethodVisitor method) {
        return new MethodVisitor(Opcodes.ASM9, method) {
            @Override
            public void visitInsn(int opcode) {
                if (opcode == Opcodes.RETURN) {
                    visitVarInsn(Opcodes.ALOAD, 0);
                    visitMethodInsn(Opcodes.INVOKESTATIC, ATTENTIONS, "lun", "()J", false);
                    visitMethodInsn(Opcodes.INVOKEVIRTUAL, path, "setLogicalUnitNumber", "(J)V",
                            false);
                }
                super.visitInsn(opcode);
            }
        };
    }

    private static MethodVisitor afterAttentions(String path, MethodVisitor method) {
        return new MethodVisitor(Opcodes.ASM9, method) {
            @Override
            public void visitCode() {
                super.visitCode();
                visitVarInsn(Opcodes.ALOAD, 0);
                visitFieldInsn(Opcodes.GETFIELD, path, "connection", CONNECTION);
                visitMethodInsn(Opcodes.INVOKESTATIC, ATTENTIONS, "take",
                        "(" + CONNECTION + ")V", false);
            }
        };
    }
}
