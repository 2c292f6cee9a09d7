/**
 * Block devices.
 *
 * <p>{@link org.lunarsan.device.Device} is the interface: blocks of one size, read and written at
 * an address.
 */
package org.lunarsan.device;
