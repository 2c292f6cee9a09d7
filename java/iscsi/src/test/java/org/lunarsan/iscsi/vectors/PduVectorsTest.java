package org.lunarsan.iscsi.vectors;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.reflect.RecordComponent;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.Pdu;

/** {@code testdata/pdus.txt}: headers of every kind, field by field. */
class PduVectorsTest {
    private static final int KINDS = 18;

    /** Goal: this module encodes and decodes every PDU as in the vectors. */
    @Test
    void headers() throws ReflectiveOperationException {
        Set<String> kinds = new HashSet<>();
        for (String line : Vectors.lines("pdus.txt")) {
            String[] sides = line.split(" = ");
            String[] said = sides[0].split(" ");
            byte[] header = Vectors.bytes(sides[1]);
            Map<String, BigInteger> fields = new HashMap<>();
            for (String field : Arrays.copyOfRange(said, 1, said.length)) {
                String[] pair = field.split("=0x");
                fields.put(pair[0].replace("_", ""), new BigInteger(pair[1], 16));
            }
            check(line, said[0], fields, header);
            kinds.add(said[0]);
        }
        assertEquals(KINDS, kinds.size());
    }

    private static void check(String line, String name, Map<String, BigInteger> fields,
            byte[] header) throws ReflectiveOperationException {
        Pdu decoded = Pdu.decode(ByteBuffer.wrap(header));
        assertEquals(name, decoded.getClass().getSimpleName(), line);
        RecordComponent[] components = decoded.getClass().getRecordComponents();
        Class<?>[] types =
                Arrays.stream(components).map(RecordComponent::getType).toArray(Class<?>[]::new);
        Object[] values = new Object[components.length];
        for (int at = 0; at < components.length; at++) {
            BigInteger value = fields.remove(components[at].getName().toLowerCase());
            values[at] = valueOf(types[at], value);
        }
        assertEquals(Map.of(), fields, line);
        Pdu built = (Pdu) decoded.getClass().getConstructor(types).newInstance(values);
        assertEquals(built, decoded, line);
        ByteBuffer encoded = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
        built.encode(encoded);
        assertArrayEquals(header, encoded.array(), line);
    }

    private static Object valueOf(Class<?> type, BigInteger value) {
        if (type == int.class) {
            return value.intValue();
        }
        if (type == long.class) {
            return value.longValue();
        }
        byte[] cdb = new byte[16];
        byte[] digits = value.toByteArray();
        int length = Math.min(digits.length, cdb.length);
        System.arraycopy(digits, digits.length - length, cdb, cdb.length - length, length);
        return cdb;
    }
}
