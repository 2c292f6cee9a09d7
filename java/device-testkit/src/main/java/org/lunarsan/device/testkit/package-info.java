/**
 * The contract of a device, as JUnit tests that any implementation can run, and helpers for such
 * tests.
 *
 * <p><b>Entry point.</b> Extend {@link org.lunarsan.device.testkit.DeviceContract} in a test class
 * and implement the creation of a device; for an {@link org.lunarsan.device.AsyncDevice} extend
 * {@link org.lunarsan.device.testkit.AsyncDeviceContract} instead, which runs both.
 *
 * <pre>{@code
 * class MyDeviceTest extends DeviceContract {
 *     @Override
 *     protected Device make(int blockSize, long blockCount) {
 *         return new MyDevice(blockSize, blockCount);
 *     }
 * }
 * }</pre>
 *
 * <p>Tests of wrappers also extend {@link org.lunarsan.device.testkit.HangingContract}, which
 * abandons transfers while an inner device hangs.
 *
 * <p><b>Randomness.</b> It comes from one seed, {@link org.lunarsan.device.testkit.Seed}, which is
 * part of the message of a failed test and is set with {@code -Dlunar.seed=…}.
 *
 * <p><b>Threads.</b> Tests of the contract start threads of their own and wait for them.
 *
 * <p><b>Power cuts.</b> {@link org.lunarsan.device.testkit.PowerCutDevice} loses unflushed writes,
 * for tests of code that relies on {@link org.lunarsan.device.Device#flush()}.
 */
package org.lunarsan.device.testkit;
