/**
 * Block devices: what a disk is to a Java program, some disks, and what can stand in front of one.
 *
 * <p><b>Entry point.</b> {@link org.lunarsan.device.Device} is the interface of the jSCSI paper:
 * blocks of one size, read and written at an address. {@link org.lunarsan.device.FileDevice} is a
 * file, {@link org.lunarsan.device.MemoryDevice} lies in memory.
 * {@link org.lunarsan.device.AsyncDevice} is a device that can be asked without waiting; any device
 * becomes one by {@link org.lunarsan.device.AsyncDevice#of(org.lunarsan.device.Device)}.
 *
 * <p><b>Features stand in front.</b> {@link org.lunarsan.device.CachedDevice} keeps the blocks used
 * last, {@link org.lunarsan.device.CoalescingDevice} queues, joins and reads ahead,
 * {@link org.lunarsan.device.FaultyDevice} fails for tests. Each is a device around a device, so
 * they can be combined. Who writes another extends
 * {@link org.lunarsan.device.ForwardingDevice} or {@link org.lunarsan.device.QueueingDevice}.
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
 * blocks are no unit.
 *
 * <p><b>Threads.</b> Every device may be used by any number of threads at the same time, platform
 * or virtual. Interrupts do no harm.
 *
 * <p><b>Errors.</b> All failures are {@link org.lunarsan.device.DeviceException}s, which say
 * device, operation, blocks and reason. Their subclasses tell misuse, which is refused before any
 * I/O, from failures of the medium, of room, and of the connection, and from a device that is no
 * longer the one that was opened.
 *
 * <p><b>A device of your own</b> passes {@code DeviceContract} of the module
 * {@code org.lunarsan.device.testkit}.
 */
package org.lunarsan.device;
