package org.lunarsan.bench.contestant;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;

import java.lang.reflect.Method;
import org.jscsi.parser.ProtocolDataUnit;
import org.jscsi.parser.scsi.SCSICommandParser;
import org.junit.jupiter.api.Test;

/** The additions to the published jSCSI. The bench shows that it can then use targets. */
class JscsiLoaderTest {
    /** Goal: a command carries the LUN that was set, in the second of eight bytes. */
    @Test
    void lun() throws Exception {
        JscsiLoader loader = new JscsiLoader();
        Class<?> attentions = loader.loadClass(JscsiAttentions.class.getName());
        Method set = attentions.getDeclaredMethod("setLun", int.class);
        set.setAccessible(true);
        set.invoke(null, 3);
        Class<?> parser = loader.loadClass(SCSICommandParser.class.getName());
        Object command = parser.getConstructor(loader.loadClass(ProtocolDataUnit.class.getName()))
                .newInstance((Object) null);
        assertEquals(0x0003_0000_0000_0000L,
                parser.getMethod("getLogicalUnitNumber").invoke(command));
    }

    /** Goal: the code of the capacity request is still valid, with an additional call. */
    @Test
    void capacity() throws Exception {
        Class<?> state = new JscsiLoader()
                .loadClass("org.jscsi.initiator.connection.state.CapacityRequestState");
        Class.forName(state.getName(), true, state.getClassLoader());
        state.getDeclaredMethod("execute");
    }

    /** Goal: classes of jSCSI come from this loader, all others from its parent, and each once. */
    @Test
    void loaderOfEachClass() throws Exception {
        JscsiLoader loader = new JscsiLoader();
        Class<?> theirs = loader.loadClass(SCSICommandParser.class.getName());
        assertNotSame(SCSICommandParser.class, theirs);
        assertSame(theirs, loader.loadClass(SCSICommandParser.class.getName()));
        assertSame(Contestant.class, loader.loadClass(Contestant.class.getName()));
    }
}
