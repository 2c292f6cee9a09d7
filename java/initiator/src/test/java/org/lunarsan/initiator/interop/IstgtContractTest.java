package org.lunarsan.initiator.interop;

import java.io.IOException;
import java.nio.file.Path;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;

/** The device contract over istgt. */
@Tag("interop")
final class IstgtContractTest extends FileContract {
    private static Path folder;
    private static Path file;
    private static Istgt server;

    @BeforeAll
    static void start() throws IOException {
        folder = scratch();
        file = zeroes(folder.resolve("disk.img"));
        server = new Istgt(folder, file);
    }

    @AfterAll
    static void stop() throws IOException {
        server.close();
        delete(folder);
    }

    @Override
    String url() {
        return server.url();
    }

    @Override
    Path file() {
        return file;
    }
}
