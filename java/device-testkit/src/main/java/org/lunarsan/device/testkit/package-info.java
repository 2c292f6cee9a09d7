/**
 * The contract of a device, as JUnit tests that any implementation can run, and what such tests
 * need.
 *
 * <p><b>Entry point.</b> Extend {@link org.lunarsan.device.testkit.DeviceContract} in a test class
 * and say how a device is made; for an {@link org.lunarsan.device.AsyncDevice} extend
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
 * <p>What wraps other devices also extends
 * {@link org.lunarsan.device.testkit.HangingContract}: transfers are given up while a device inside
 * hangs.
 *
 * <p><b>Randomness.</b> All of it comes from one seed, {@link org.lunarsan.device.testkit.Seed},
 * which stands in the message of a test that fails and is set with {@code -Dlunar.seed=…}.
 *
 * <p><b>Threads.</b> Tests of the contract start threads of their own and wait for them.
 *
 * <p><b>Power cuts.</b> {@link org.lunarsan.device.testkit.PowerCutDevice} loses what was not
 * flushed, for tests of what builds on {@link org.lunarsan.device.Device#flush()}.
 */
package org.lunarsan.device.testkit;
