/**
 * Programs that show how the devices are used.
 *
 * <p>{@link org.lunarsan.examples.Copy} copies a file to a LUN of an iSCSI target and back:
 * {@code java -jar java/examples/target/lunar-copy.jar disk.img iscsi://host/target/0}. It keeps
 * several transfers under way with one thread, by the calls that return futures.
 */
package org.lunarsan.examples;
