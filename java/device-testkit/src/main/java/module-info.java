/** The contract of a device, as tests. */
module org.lunarsan.device.testkit {
    requires transitive org.lunarsan.device;
    requires transitive org.junit.jupiter.api;
}
