/**
 * RFC 7143 without I/O: PDUs, text keys, the login, and sessions and connections in the initiator
 * role. Uses no sockets, threads or clocks; the time is passed in as an argument.
 */
module org.lunarsan.iscsi {
    exports org.lunarsan.iscsi.connection;
    exports org.lunarsan.iscsi.framing;
    exports org.lunarsan.iscsi.login;
    exports org.lunarsan.iscsi.pdu;
    exports org.lunarsan.iscsi.scsi;
    exports org.lunarsan.iscsi.session;
    exports org.lunarsan.iscsi.text;
    exports org.lunarsan.iscsi.wire;
}
