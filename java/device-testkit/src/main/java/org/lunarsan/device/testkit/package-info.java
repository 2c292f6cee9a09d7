/** The contract of a device, as tests. */
package org.lunarsan.device.testkit;
