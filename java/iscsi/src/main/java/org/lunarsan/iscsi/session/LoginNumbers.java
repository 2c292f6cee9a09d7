package org.lunarsan.iscsi.session;

/**
 * The numbers that a Login Request of a session carries. RFC 7143 §11.12.
 *
 * <p>Threads: immutable.
 *
 * @param isid six bytes
 * @param tsih 0 for the leading connection
 * @param cmdSn CmdSN
 */
public record LoginNumbers(long isid, int tsih, int cmdSn) {
}
