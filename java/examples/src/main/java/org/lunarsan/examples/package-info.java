/**
 * Programs that show the use of devices.
 *
 * <p>{@link org.lunarsan.examples.Copy} copies a file to a LUN of an iSCSI target and back:
 * {@code java -jar java/examples/target/lunar-copy.jar disk.img iscsi://host/target/0}. It keeps
 * several transfers pending with one thread, by asynchronous calls.
 */
package org.lunarsan.examples;
