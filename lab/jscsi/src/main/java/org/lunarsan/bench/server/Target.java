package org.lunarsan.bench.server;

import java.util.List;

/**
 * A target in a separate process, with LUNs on files. Closing it ends the process.
 *
 * <p>Threads: for one thread.
 */
public interface Target extends AutoCloseable {
    /**
     * Name of the program.
     *
     * @return {@code lunar} or {@code tgt}
     */
    String name();

    /**
     * Port on which it listens.
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
     * URL of a LUN.
     *
     * @param lun the LUN
     * @return {@code iscsi://127.0.0.1:PORT/IQN/LUN}
     */
    default String url(int lun) {
        return url(lun, port());
    }

    /**
     * URL of a LUN behind a relay.
     *
     * @param lun the LUN
     * @param port the port of the relay
     * @return {@code iscsi://127.0.0.1:PORT/IQN/LUN}
     */
    default String url(int lun, int port) {
        return "iscsi://127.0.0.1:" + port + "/" + iqn() + "/" + lun;
    }

    @Override
    void close();
}
