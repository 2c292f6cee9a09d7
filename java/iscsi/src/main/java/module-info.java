/** RFC 7143 without I/O. */
module org.lunarsan.iscsi {
}
