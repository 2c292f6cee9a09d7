package org.lunarsan.iscsi.vectors;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;

/** The vectors in {@code testdata/}, which Rust and Java share. */
final class Vectors {
    private Vectors() {
    }

    /** Every line of a file that is no comment. */
    static List<String> lines(String name) {
        Path file = folder().resolve(name);
        try {
            return Files.readAllLines(file).stream()
                    .filter(line -> !line.isEmpty() && !line.startsWith("#")).toList();
        } catch (IOException missing) {
            throw new UncheckedIOException(missing);
        }
    }

    /** Above the folder that the tests run in, whether that is the module or all of it. */
    private static Path folder() {
        Path at = Path.of("").toAbsolutePath();
        while (!Files.exists(at.resolve("testdata/make_vectors.py"))) {
            at = at.getParent();
            if (at == null) {
                throw new IllegalStateException("no folder above has testdata/make_vectors.py");
            }
        }
        return at.resolve("testdata");
    }

    /** The bytes of hexadecimal digits; {@code -} stands for none. */
    static byte[] bytes(String hex) {
        return hex.equals("-") ? new byte[0] : HexFormat.of().parseHex(hex);
    }
}
