package org.lunarsan.bench.contestant;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

/** Addresses of operations. Each run of the table checks that the C code agrees. */
class OperationDataTest {
    /** Goal: the generator is SplitMix64, by its published first outputs for the seed 1234567. */
    @Test
    void generator() {
        assertEquals(6457827717110365317L, OperationData.mixed(1234567, 0));
        assertEquals(3203168211198807973L, OperationData.mixed(1234567, 1));
        assertEquals(
                Long.parseUnsignedLong("9817491932198370423"), OperationData.mixed(1234567, 2));
    }

    /** Goal: operations are aligned to their length and end within the range. */
    @Test
    void places() {
        for (int number = 0; number < 1000; number++) {
            long address = OperationData.address(7, number, 80, 1000);
            assertTrue(address >= 0 && address + 80 <= 1000 && address % 80 == 0);
        }
        assertThrows(IllegalArgumentException.class, () -> OperationData.address(7, 0, 80, 79));
    }

    /** Goal: different data have different hashes. */
    @Test
    void sums() {
        byte[] one = new byte[4096];
        byte[] other = new byte[4096];
        OperationData.fill(one, 1);
        OperationData.fill(other, 2);
        assertNotEquals(OperationData.hash(one), OperationData.hash(other));
        OperationData.fill(other, 1);
        assertEquals(OperationData.hash(one), OperationData.hash(other));
        byte first = other[0];
        other[0] = other[8];
        other[8] = first;
        assertNotEquals(OperationData.hash(one), OperationData.hash(other));
    }
}
