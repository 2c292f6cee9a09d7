package org.lunarsan.iscsi.vectors;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;

/** The vectors in {@code testdata/}, shared by Rust and Java. */
final class Vectors {
    private Vectors() {
    }

    /** Returns every line of a file except comments. */
    static List<String> lines(String name) {
        Path file = folder().resolve(name);
        try {
            return Files.readAllLines(file).stream()
                    .filter(line -> !line.isEmpty() && !line.startsWith("#")).toList();
        } catch (IOException missing) {
            throw new UncheckedIOException(missing);
        }
    }

    /** Finds the folder above the working directory, in a module or the whole project. */
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

    /** Parses hexadecimal digits; {@code -} means no bytes. */
    static byte[] bytes(String hex) {
        return hex.equals("-") ? new byte[0] : HexFormat.of().parseHex(hex);
    }
}
