package org.lunarsan.bench.part;

import java.util.ArrayList;
import java.util.List;
import org.openjdk.jmh.profile.GCProfiler;
import org.openjdk.jmh.results.RunResult;
import org.openjdk.jmh.runner.Runner;
import org.openjdk.jmh.runner.RunnerException;
import org.openjdk.jmh.runner.options.OptionsBuilder;
import org.openjdk.jmh.runner.options.TimeValue;
import org.openjdk.jmh.runner.options.VerboseMode;

/**
 * Runs JMH with its GC profiler over {@link ReadGarbage}: the first argument is a URL, the others
 * are options of the JVM. Prints a line for each way to read: name, bytes allocated per read, reads
 * per second.
 *
 * <p>Threads: one.
 */
public final class GarbageProbe {
    private static final String BYTES = "gc.alloc.rate.norm";
    private static final int WARM_UPS = 5;
    private static final int MEASURED = 5;

    private GarbageProbe() {
    }

    /**
     * Runs JMH.
     *
     * @param arguments a URL, and options of the JVM that is measured
     * @throws RunnerException when JMH fails
     */
    public static void main(String[] arguments) throws RunnerException {
        List<String> options = new ArrayList<>(List.of(arguments)).subList(1, arguments.length);
        for (RunResult result : new Runner(new OptionsBuilder()
                .include("\\." + ReadGarbage.class.getSimpleName() + "\\.")
                .param("url", arguments[0]).jvmArgs(options.toArray(String[]::new))
                .forks(1).threads(1)
                .warmupIterations(WARM_UPS).warmupTime(TimeValue.seconds(2))
                .measurementIterations(MEASURED).measurementTime(TimeValue.seconds(2))
                .addProfiler(GCProfiler.class).verbosity(VerboseMode.SILENT)
                .shouldFailOnError(true).build()).run()) {
            String name = result.getParams().getBenchmark();
            System.out.printf("result %s %f %f%n", name.substring(name.lastIndexOf('.') + 1),
                    result.getSecondaryResults().get(BYTES).getScore(),
                    result.getPrimaryResult().getScore());
        }
    }
}
