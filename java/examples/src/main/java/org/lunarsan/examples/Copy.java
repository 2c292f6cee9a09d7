package org.lunarsan.examples;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Optional;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.initiator.IscsiDevice;
import org.lunarsan.initiator.IscsiException;
import org.lunarsan.initiator.IscsiOptions;

/**
 * A command-line program: copies a file to a LUN, or a LUN to a file.
 *
 * <p>Threads: one.
 */
public final class Copy {
    private static final int DONE = 0;
    private static final int FAILED = 1;
    private static final int WRONG_USAGE = 2;

    private final PrintStream out;
    private final PrintStream err;
    private final boolean terminal;
    private final Opener opener;

    /** Opens the LUN that a URL names; replaced in tests. */
    interface Opener {
        AsyncDevice open(String url, IscsiOptions options) throws IOException;
    }

    /** Creates the program; {@code terminal} tells whether progress is shown on a terminal. */
    Copy(PrintStream out, PrintStream err, boolean terminal, Opener opener) {
        this.out = out;
        this.err = err;
        this.terminal = terminal;
        this.opener = opener;
    }

    /**
     * Runs the program, and ends the process with 0 on success, 1 on failure, 2 on wrong usage.
     *
     * @param arguments as {@code --help} explains them
     */
    public static void main(String[] arguments) {
        // The JDK reports this for standard input and output only.
        boolean terminal = System.console() != null;
        System.exit(new Copy(System.out, System.err, terminal, IscsiDevice::open).run(arguments));
    }

    /** Runs the program; returns the exit status. */
    int run(String... arguments) {
        CopyOptions options;
        try {
            options = CopyOptions.parse(arguments);
        } catch (CopyOptions.UsageException wrong) {
            err.println("lunar-copy: " + wrong.getMessage() + " (--help explains)");
            return WRONG_USAGE;
        }
        if (options.help()) {
            out.print(CopyOptions.HELP);
            return DONE;
        }
        Progress progress = new Progress(options.json() ? null : err, terminal);
        try {
            long bytes = copy(options, progress);
            progress.done(bytes);
            printResult(options, bytes, progress.seconds());
            return DONE;
        } catch (IOException failure) {
            progress.failed();
            return fail(options, failure);
        }
    }

    private long copy(CopyOptions options, Progress progress) throws IOException {
        boolean writes = options.writesLun();
        String url = writes ? options.destination() : options.source();
        Path path = Path.of(writes ? options.source() : options.destination());
        IscsiOptions.Builder session =
                IscsiOptions.builder().connections(options.connections())
                        .protocolLevel(options.protocolLevel());
        options.mutual().ifPresent(
                mutual -> session.mutualChapSecretFile(mutual.user(), mutual.secretFile()));
        // Open the file first: a wrong path should not cost a login.
        try (FileChannel file = writes ? FileChannel.open(path, StandardOpenOption.READ)
                : FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
                AsyncDevice disk = opener.open(url, session.build())) {
            Copier copier = new Copier(file, disk, progress);
            return writes ? copier.toLun() : copier.toFile();
        }
    }

    private void printResult(CopyOptions options, long bytes, double seconds) {
        double rate = bytes / Math.max(seconds, 1e-3);
        if (options.json()) {
            out.println("{\"source\": " + Json.text(options.source()) + ", \"destination\": "
                    + Json.text(options.destination()) + ", \"bytes\": " + bytes
                    + ", \"seconds\": " + Json.number(seconds) + ", \"bytes_per_second\": "
                    + Json.number(rate) + "}");
        } else {
            out.println("%d bytes copied in %.1f s, %.1f MiB/s"
                    .formatted(bytes, seconds, rate / (1 << 20)));
        }
    }

    private int fail(CopyOptions options, IOException failure) {
        Optional<String> hint = IscsiException.in(failure).flatMap(IscsiException::hint);
        String what = failure.getMessage() == null ? failure.toString()
                : failure.getClass().getSimpleName() + ": " + failure.getMessage();
        if (options.json()) {
            out.println("{\"error\": " + Json.text(what) + ", \"hint\": "
                    + hint.map(Json::text).orElse("null") + "}");
        }
        err.println("lunar-copy: " + what);
        return FAILED;
    }
}
