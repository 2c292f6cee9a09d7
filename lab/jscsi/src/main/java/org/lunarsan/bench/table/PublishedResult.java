package org.lunarsan.bench.table;

import java.util.List;

/**
 * A row of table 1 of "jSCSI - A Java iSCSI Initiator" (Kramis and others, 2007), in milliseconds.
 *
 * <p>Threads: immutable.
 *
 * @param operation the corresponding operation of this benchmark
 * @param initiator name of the initiator in the paper
 * @param min minimum
 * @param max maximum
 * @param mean average
 * @param deviation standard deviation
 * @param runs number of runs
 */
record PublishedResult(Operation operation, String initiator, double min, double max, double mean,
        double deviation, int runs) {
    static final List<PublishedResult> TABLE = List.of(
            new PublishedResult(Operation.READ_40_KB, "jSCSI", 2, 14, 3.34, 1.32, 100),
            new PublishedResult(Operation.READ_40_KB, "Open-iSCSI", 4, 15, 5.29, 1.32, 100),
            new PublishedResult(Operation.READ_400_KB, "jSCSI", 22, 24, 22.48, 0.52, 100),
            new PublishedResult(Operation.READ_400_KB, "Open-iSCSI", 5, 16, 6.79, 3.19, 100),
            new PublishedResult(Operation.WRITE_8_MB, "jSCSI", 3889, 6987, 4347.55, 398.42, 1000),
            new PublishedResult(
                    Operation.WRITE_8_MB_RAID0, "jSCSI", 2346, 4947, 2803.46, 330.12, 1000),
            new PublishedResult(
                    Operation.WRITE_8_MB_RAID1, "jSCSI", 4663, 9447, 5313.72, 487.65, 1000));
}
