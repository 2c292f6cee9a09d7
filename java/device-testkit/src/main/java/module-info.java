/** The contract of devices, as tests. */
module org.lunarsan.device.testkit {
    requires transitive org.lunarsan.device;
    requires transitive org.junit.jupiter.api;

    exports org.lunarsan.device.testkit;

    opens org.lunarsan.device.testkit to org.junit.platform.commons;
}
