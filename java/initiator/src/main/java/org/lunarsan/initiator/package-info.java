/** Disks of iSCSI targets as devices. */
package org.lunarsan.initiator;
