/** Block devices. */
module org.lunarsan.device {
    exports org.lunarsan.device;
}
