package org.lunarsan.device;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Test;

class GeometryTest {
    /** Goal: impossible shapes are refused, with the requested kind of exception. */
    @Test
    void refusesImpossibleShapes() {
        for (int size : new int[] {0, -512, 1, 511, 513, 1536, 256, 8192, Integer.MIN_VALUE}) {
            assertThrows(IllegalArgumentException.class, () -> new Geometry(size, 1));
            assertThrows(DeviceOpenException.class, () -> Geometry.of("a", size, 1));
        }
        long most = Long.MAX_VALUE / 512;
        assertEquals(most * 512, new Geometry(512, most).bytes());
        for (long count : new long[] {0, -1, most + 1, Long.MAX_VALUE, Long.MIN_VALUE}) {
            assertThrows(DeviceOpenException.class, () -> Geometry.of("a", 512, count));
        }
    }

    /** Goal: no sum overflows: ranges are checked as with unbounded numbers. */
    @Test
    void checksRangesWithoutOverflow() throws Exception {
        Geometry shape = new Geometry(512, 10);
        shape.checkRange("a", Operation.READ, 0, 10);
        shape.checkRange("a", Operation.READ, 10, 0);
        long[][] outside = {
            {0, 11}, {10, 1}, {11, 0}, {-1, 0}, {-1, 1}, {1, -1},
            {Long.MAX_VALUE, 1}, {1, Long.MAX_VALUE}, {Long.MIN_VALUE, Long.MIN_VALUE},
            {Long.MAX_VALUE, Long.MAX_VALUE},
        };
        for (long[] range : outside) {
            assertThrows(OutOfRangeException.class,
                    () -> shape.checkRange("a", Operation.READ, range[0], range[1]));
        }
    }

    /** Goal: a message names device, operation, blocks and reason. */
    @Test
    void messagesNameTheBlocks() {
        DeviceException failure =
                new MediumException("disk.img", Operation.READ, 8, 2, "it broke", null);
        assertEquals("disk.img: read of blocks 8+2: it broke", failure.getMessage());
        failure = new PoisonedException("disk.img", Operation.FLUSH, "it broke", null);
        assertEquals("disk.img: flush: it broke", failure.getMessage());
    }
}
