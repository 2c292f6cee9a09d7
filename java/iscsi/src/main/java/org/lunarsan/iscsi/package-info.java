/** RFC 7143 without I/O: no socket, no thread, no clock. */
package org.lunarsan.iscsi;
