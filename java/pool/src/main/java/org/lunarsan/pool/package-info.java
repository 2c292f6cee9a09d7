/**
 * Devices joined to pools: striped for speed and size, mirrored for safety. The storage pool of the
 * jSCSI paper, with what it plans for version 2.0 where that concerns mirrors and stripes.
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
 * <p><b>Labels.</b> Each member says in two labels which pool it belongs to, at which place, and
 * which members had all data when that changed last. Devices that do not belong together, are
 * missing or twice there are refused in words that say which. {@code docs/formats/pool.md}
 * describes every byte.
 *
 * <p><b>Reading and writing.</b> As of any device. A mirror acknowledges a write when all members
 * have it, or when those that do not are marked as stale on all others, durably.
 *
 * <p><b>Times.</b> A mirror goes on without a member that is
 * {@link org.lunarsan.pool.MirrorOptions#memberMillisMax()} later than another, and copies to it
 * when it answers again. Stripes wait for each member as long as that takes.
 *
 * <p><b>Log.</b> Mirrors log which member is left out and why, the begin and the end of each copy,
 * and lost writes, to the platform's logger {@code org.lunarsan.pool}.
 *
 * <p><b>Threads.</b> Any number, as with any device. Members are asked at the same time: by futures
 * where they are {@link org.lunarsan.device.AsyncDevice}, else on virtual threads.
 *
 * <p><b>Closing</b> waits for members for 10 seconds at each step, then closes them under what is
 * left, and throws: a mirror tells how much is marked for the next opening to copy.
 *
 * <p><b>Errors.</b> A failure is of the kind of the member's, which is its cause, with the address
 * in the pool. A buffer that cannot be used, as one of a closed arena, fails its own call.
 * {@link org.lunarsan.pool.PoolStatus} tells which members a mirror goes on without.
 *
 * <p><b>What a pool does not know.</b> Whether another process has it open: only the members can
 * keep others out, as a file device does.
 */
package org.lunarsan.pool;
