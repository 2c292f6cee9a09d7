/** Provides disks of iSCSI targets as devices. */
module org.lunarsan.initiator {
    requires transitive org.lunarsan.device;
    requires transitive org.lunarsan.iscsi;

    exports org.lunarsan.initiator;
}
