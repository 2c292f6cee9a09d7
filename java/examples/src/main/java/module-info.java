/** Programs that show the use of devices. */
module org.lunarsan.examples {
    requires org.lunarsan.device;
    requires org.lunarsan.initiator;
    requires org.lunarsan.pool;

    exports org.lunarsan.examples;
}
