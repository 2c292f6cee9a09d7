package org.lunarsan.device.testkit;

import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.io.TempDir;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.FileDevice;

/** Both device contracts, over a file behind a cache and virtual threads. */
class AsyncFileContractTest extends AsyncDeviceContract {
    @TempDir Path folder;

    @Override
    protected AsyncDevice make(int blockSize, long blockCount) throws Exception {
        Path path = folder.resolve("disk.img");
        Files.deleteIfExists(path);
        return AsyncDevice.of(
                new CachedDevice(FileDevice.create(path, blockSize, blockCount), 64 << 10));
    }
}
