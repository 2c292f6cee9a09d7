package org.lunarsan.bench.contestant;

import com.sun.management.ThreadMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A contestant as a process: reads commands by lines from standard input, and answers each by one
 * line on standard output. The protocol is that of libiscsi-ops.c, where it is specified; here,
 * allocated bytes are known.
 *
 * <p>Threads: one.
 */
public final class ContestantMain {
    private static final ThreadMXBean THREADS =
            (ThreadMXBean) ManagementFactory.getThreadMXBean();

    private final Kind kind;
    private final Map<String, Contestant> disks = new HashMap<>();

    private ContestantMain(Kind kind) {
        this.kind = kind;
    }

    /**
     * Answers commands until the input ends.
     *
     * @param arguments the contestant's name
     * @throws IOException when the input cannot be read
     */
    public static void main(String[] arguments) throws IOException {
        ContestantMain contestant = new ContestantMain(Kind.of(arguments[0]));
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        // Output of a contestant's library must not be taken for an answer.
        PrintStream output = System.out;
        System.setOut(System.err);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.println(contestant.answer(line));
            output.flush();
        }
        // Threads of a contestant's library may not end.
        Runtime.getRuntime().halt(0);
    }

    private String answer(String line) {
        try {
            return "ok" + done(line.split(" "));
        } catch (Exception failed) {
            failed.printStackTrace(System.err);
            return "error " + failed.toString().replace('\n', ' ');
        }
    }

    private String done(String[] words) throws Exception {
        switch (words[0]) {
            case "open" -> {
                List<String> urls = List.of(words).subList(4, words.length);
                Contestant disk = kind.open(Shape.of(words[2]), Integer.parseInt(words[3]), urls);
                disks.put(words[1], disk);
                return " " + disk.blockSize() + " " + disk.blockCount();
            }
            case "turn" -> {
                return turn(disk(words), words[2].equals("write"), numbers(words));
            }
            case "check" -> {
                return check(disk(words), words[2].equals("write"), numbers(words));
            }
            case "load" -> {
                return load(disk(words), words[2].equals("futures"), numbers(words));
            }
            case "close" -> {
                for (Contestant disk : disks.values()) {
                    disk.close();
                }
                disks.clear();
                return "";
            }
            default -> throw new IllegalArgumentException("not understood: " + words[0]);
        }
    }

    private Contestant disk(String[] words) {
        Contestant disk = disks.get(words[1]);
        if (disk == null) {
            throw new IllegalArgumentException("no disk is called " + words[1]);
        }
        return disk;
    }

    private static long[] numbers(String[] words) {
        long[] numbers = new long[words.length - 3];
        for (int at = 0; at < numbers.length; at++) {
            numbers[at] = Long.parseLong(words[at + 3]);
        }
        return numbers;
    }

    /** Arguments: BLOCKS COUNT SEED RANGE_BLOCKS. */
    private static String turn(Contestant disk, boolean writes, long[] args) throws Exception {
        int count = Math.toIntExact(args[1]);
        byte[] buffer = new byte[Math.toIntExact(args[0] * disk.blockSize())];
        if (writes) {
            OperationData.fill(buffer, args[2]);
        }
        long[] nanos = new long[count];
        long[] allocated = new long[count];
        for (int number = 0; number < count; number++) {
            long address = OperationData.address(args[2], number, args[0], args[3]);
            long before = THREADS.getTotalThreadAllocatedBytes();
            long begun = System.nanoTime();
            if (writes) {
                disk.write(address, buffer);
            } else {
                disk.read(address, buffer);
            }
            nanos[number] = System.nanoTime() - begun;
            allocated[number] = THREADS.getTotalThreadAllocatedBytes() - before;
        }
        StringBuilder text = new StringBuilder();
        for (int number = 0; number < count; number++) {
            text.append(' ').append(nanos[number]).append(':').append(allocated[number]);
        }
        return text.toString();
    }

    /**
     * Returns requests per second. Arguments: DEPTH MILLIS SEED RANGE_BLOCKS BLOCKS. Only for our
     * initiator.
     */
    private static String load(Contestant disk, boolean byFutures, long[] args) throws Exception {
        Load.Arguments load = new Load.Arguments(
                Math.toIntExact(args[0]), args[1], args[2], args[3], Math.toIntExact(args[4]));
        return " " + Load.run(((OursContestant) disk).async(), byFutures, load);
    }

    /** Arguments: BLOCKS SEED RANGE_BLOCKS. */
    private static String check(Contestant disk, boolean writes, long[] args) throws Exception {
        byte[] buffer = new byte[Math.toIntExact(args[0] * disk.blockSize())];
        long address = OperationData.address(args[1], 0, args[0], args[2]);
        if (writes) {
            OperationData.fill(buffer, args[1]);
            disk.write(address, buffer);
        } else {
            disk.read(address, buffer);
        }
        return " " + address + " " + "%016x".formatted(OperationData.hash(buffer));
    }
}
