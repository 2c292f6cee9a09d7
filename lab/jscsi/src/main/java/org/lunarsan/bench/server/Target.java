package org.lunarsan.bench.server;

import java.util.List;

/**
 * A target in a process of its own, with LUNs on files. Closing it ends the process.
 *
 * <p>Threads: for one.
 */
public interface Target extends AutoCloseable {
    /**
     * What serves.
     *
     * @return {@code lunar} or {@code tgt}
     */
    String name();

    /**
     * Where it listens.
     *
     * @return a port of 127.0.0.1
     */
    int port();

    /**
     * Its iSCSI name.
     *
     * @return an IQN
     */
    String iqn();

    /**
     * The files behind its LUNs.
     *
     * @return in the order of LUNs
     */
    List<Disk> disks();

    /**
     * The numbers of its LUNs.
     *
     * @return one for each of the disks
     */
    List<Integer> luns();

    /**
     * Where a LUN is.
     *
     * @param lun which
     * @return {@code iscsi://127.0.0.1:PORT/IQN/LUN}
     */
    default String url(int lun) {
        return url(lun, port());
    }

    /**
     * Where a LUN is behind a relay.
     *
     * @param lun which
     * @param port where the relay listens
     * @return {@code iscsi://127.0.0.1:PORT/IQN/LUN}
     */
    default String url(int lun, int port) {
        return "iscsi://127.0.0.1:" + port + "/" + iqn() + "/" + lun;
    }

    @Override
    void close();
}
