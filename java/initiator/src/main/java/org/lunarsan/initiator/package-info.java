/**
 * Disks of iSCSI targets as devices. RFC 7143.
 *
 * <p><b>Entry point.</b> {@link org.lunarsan.initiator.IscsiDevice} is a LUN behind a URL:
 *
 * <pre>{@code
 * IscsiOptions options = IscsiOptions.builder().connections(4).build();
 * String url = "iscsi://vm@san.example/iqn.2026-11.org.example:vm/0";
 * try (IscsiDevice disk = IscsiDevice.open(url, options)) {
 *     byte[] block = new byte[disk.blockSize()];
 *     disk.read(0, block);
 *     disk.write(1, block);
 *     disk.flush(); // from here on it is durable
 *     ByteBuffer much = ByteBuffer.allocateDirect(1 << 20);
 *     disk.readAsync(2, much).thenAccept(done -> use(much.flip()));
 * }
 * }</pre>
 *
 * <p>{@link org.lunarsan.initiator.Discovery} lists the targets of a portal,
 * {@link org.lunarsan.initiator.IscsiOptions} holds identity, requirements and timeouts,
 * {@link org.lunarsan.initiator.IscsiUrl} parses URLs. A CHAP secret comes from a file or the
 * environment variable {@code LUNAR_CHAP_SECRET}; never from the URL.
 *
 * <p><b>Reading and writing.</b> Any number of commands may be in flight, on several connections.
 * Direct buffers are read into without a copy and, if long, sent without a copy. Lost connections
 * are re-established, and unanswered commands are sent again: all commands of a disk can be
 * repeated, and the tasks of a lost session have ended when the target answers the next login.
 *
 * <p><b>Buffers.</b> The caller owns a buffer again when the call returns or the future that it
 * returned is complete, also by {@code orTimeout} or {@code cancel}.
 *
 * <p><b>Threads.</b> Everything may be called from any thread, platform or virtual. Each connection
 * has one thread that reads and one that writes and handles timeouts, both daemons; a caller sends
 * its command itself if no other thread is sending. Futures complete in the reading thread.
 *
 * <p><b>Waits.</b> All waits are bounded: logins, lost sessions, commands, aborts, silence and
 * logouts each have a time limit in {@link org.lunarsan.initiator.IscsiOptions}.
 *
 * <p><b>Errors.</b> All failures are {@link org.lunarsan.device.DeviceException}s of the kind that
 * fits. {@link org.lunarsan.initiator.IscsiException#in} finds the details in them: SCSI status,
 * sense data, and advice.
 */
package org.lunarsan.initiator;
