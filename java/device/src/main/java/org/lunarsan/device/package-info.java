/**
 * Block devices: the interface of a disk, some implementations, and decorators.
 *
 * <p><b>Entry point.</b> {@link org.lunarsan.device.Device} is the interface of the jSCSI paper:
 * blocks of one size, read and written at an address. {@link org.lunarsan.device.FileDevice} is a
 * file, {@link org.lunarsan.device.MemoryDevice} lies in memory.
 * {@link org.lunarsan.device.AsyncDevice} is a device with asynchronous calls; any device becomes
 * one by {@link org.lunarsan.device.AsyncDevice#of(org.lunarsan.device.Device)}.
 *
 * <p><b>Decorators.</b> {@link org.lunarsan.device.CachedDevice} keeps the most recently used
 * blocks, {@link org.lunarsan.device.CoalescingDevice} queues, joins and prefetches,
 * {@link org.lunarsan.device.FaultyDevice} fails for tests. Each is a device around a device, so
 * they can be combined. Further ones extend {@link org.lunarsan.device.ForwardingDevice} or
 * {@link org.lunarsan.device.QueueingDevice}.
 *
 * <pre>{@code
 * try (Device disk = new CachedDevice(FileDevice.of(path, 4096), 64 << 20)) {
 *     disk.open();
 *     byte[] block = new byte[disk.blockSize()];
 *     disk.read(0, block);
 *     disk.write(1, block);
 *     disk.flush();
 * }
 * }</pre>
 *
 * <p><b>Reading and writing.</b> Addresses and counts are in blocks, buffers in whole blocks. A
 * write that returned is found by every later read; it is durable after
 * {@link org.lunarsan.device.Device#flush()}. A block is never torn between two writes; several
 * blocks are not written atomically.
 *
 * <p><b>Threads.</b> Every device may be used by any number of threads at the same time, platform
 * or virtual. Interrupts do no harm.
 *
 * <p><b>Errors.</b> All failures are {@link org.lunarsan.device.DeviceException}s, which name
 * device, operation, blocks and reason. Their subclasses distinguish misuse, which is refused
 * before any I/O, failures of the medium, of space, and of the connection, and a device that is no
 * longer the one that was opened.
 *
 * <p><b>Your own devices</b> have to pass {@code DeviceContract} of the module
 * {@code org.lunarsan.device.testkit}.
 */
package org.lunarsan.device;
