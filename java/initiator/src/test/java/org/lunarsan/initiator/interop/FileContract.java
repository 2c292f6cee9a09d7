package org.lunarsan.initiator.interop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.testkit.AsyncDeviceContract;
import org.lunarsan.initiator.IscsiDevice;
import org.lunarsan.initiator.IscsiOptions;
import org.lunarsan.initiator.IscsiUrl;

/** The device contract over a running server whose file is cleared for each device. */
abstract class FileContract extends AsyncDeviceContract {
    static final int FILE_BYTES = 2048 * 512;

    static Path scratch() throws IOException {
        return Files.createTempDirectory("lunar-java-");
    }

    static void delete(Path folder) throws IOException {
        try (Stream<Path> all = Files.walk(folder)) {
            for (Path path : all.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        }
    }

    /** Overwrites the file with zeroes in place, because the server has it open. */
    static Path zeroes(Path file) throws IOException {
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.CREATE,
                StandardOpenOption.WRITE)) {
            ByteBuffer zeroes = ByteBuffer.allocate(FILE_BYTES);
            while (zeroes.hasRemaining()) {
                channel.write(zeroes, zeroes.position());
            }
        }
        return file;
    }

    abstract String url();

    abstract Path file();

    @Override
    protected AsyncDevice make(int blockSize, long blockCount) throws IOException {
        zeroes(file());
        return IscsiDevice.of(IscsiUrl.parse(url()), IscsiOptions.defaults());
    }

    @Override
    protected List<Integer> blockSizes() {
        return List.of(512);
    }
}
