package org.lunarsan.device.testkit;

import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.io.TempDir;
import org.lunarsan.device.Device;
import org.lunarsan.device.FileDevice;

/** The device contract, over a file. */
class FileDeviceContractTest extends DeviceContract {
    @TempDir Path folder;

    @Override
    protected Device make(int blockSize, long blockCount) throws Exception {
        Path path = folder.resolve("disk.img");
        Files.deleteIfExists(path);
        return FileDevice.create(path, blockSize, blockCount);
    }

    @Override
    protected Device reopen(Device used) throws Exception {
        used.close();
        Device again = FileDevice.of(Path.of(used.name()), used.blockSize());
        again.open();
        return again;
    }

    @Override
    protected int blockSize() {
        return 4096;
    }
}
