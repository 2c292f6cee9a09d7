/**
 * Pools of devices: striped for speed and size, mirrored for safety. The storage pool of the jSCSI
 * paper, with the mirrors and stripes that it plans for version 2.0.
 *
 * <p><b>Entry point.</b> {@link org.lunarsan.pool.MirroredDevice} and
 * {@link org.lunarsan.pool.StripedDevice}. Each is a device: a pool may be a member of another (a
 * stripe of mirrors), or lie under a cache.
 *
 * <pre>{@code
 * List<Device> disks = List.of(FileDevice.of(one, 4096), FileDevice.of(two, 4096));
 * MirroredDevice.create(disks);                    // once
 * try (MirroredDevice pool = MirroredDevice.of(disks)) {
 *     pool.open();
 *     pool.write(0, new byte[4096]);
 *     pool.flush();
 * }
 * }</pre>
 *
 * <p><b>Labels.</b> Two labels on each member record its pool, its slot, and the members that had
 * all data at the last change of states. Opening fails if devices do not belong together, are
 * missing or occur twice; the message names them. {@code docs/formats/pool.md} describes every
 * byte.
 *
 * <p><b>Reading and writing.</b> As with any device. A mirror acknowledges a write when all members
 * have it, or when the members without it are marked as stale on all others, durably.
 *
 * <p><b>Times.</b> A mirror continues without a member that is
 * {@link org.lunarsan.pool.MirrorOptions#memberMillisMax()} later than another, and copies to it
 * when it answers again. A striped pool waits for each member without a limit.
 *
 * <p><b>Log.</b> Mirrors log each member that is left out with the reason, the begin and the end of
 * each copy, and lost writes, to the platform's logger {@code org.lunarsan.pool}.
 *
 * <p><b>Threads.</b> Any number, as with any device. Calls go to all members at the same time: by
 * futures if they are {@link org.lunarsan.device.AsyncDevice}, else on virtual threads.
 *
 * <p><b>Closing</b> waits for members for 10 seconds at each step, then closes them under the
 * remaining calls, and throws: a mirror reports how many regions are marked for the next opening to
 * copy.
 *
 * <p><b>Errors.</b> A failure is of the kind of the member's, which is its cause, with the address
 * in the pool. An unusable buffer, such as one of a closed arena, fails only its own call.
 * {@link org.lunarsan.pool.PoolStatus} reports which members a mirror has left out.
 *
 * <p><b>Limits.</b> A pool cannot detect that another process has it open: only the members can
 * lock other processes out, as a file device does.
 */
package org.lunarsan.pool;
