/** Pools of devices: striped and mirrored. */
module org.lunarsan.pool {
    requires transitive org.lunarsan.device;

    exports org.lunarsan.pool;
}
