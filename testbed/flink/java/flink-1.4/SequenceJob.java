import java.util.Collections;
import java.util.List;
import org.apache.flink.streaming.api.checkpoint.ListCheckpointed;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.source.RichParallelSourceFunction;

/** Counts without end, from the last checkpoint on. Arguments: see testbed/flink/programs.py. */
public final class SequenceJob {
  private SequenceJob() {}

  public static void main(String[] args) throws Exception {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    env.setParallelism(Integer.parseInt(args[1]));
    env.enableCheckpointing(Long.parseLong(args[3]));
    Work.on(env.addSource(new Sequence(Long.parseLong(args[2]))).name("sequence").uid("source"), 0);
    env.execute(args[0]);
  }

  /** Not generateSequence, which on 1.4 holds all its numbers in memory before it starts. */
  private static final class Sequence extends RichParallelSourceFunction<Long> implements ListCheckpointed<Long> {
    private final long delayMs;
    private volatile boolean running = true;
    private long next = 0;

    Sequence(long delayMs) {
      this.delayMs = delayMs;
    }

    @Override
    public void run(SourceContext<Long> context) throws InterruptedException {
      while (running) {
        Thread.sleep(delayMs); // not under the lock, for which checkpoints wait
        synchronized (context.getCheckpointLock()) {
          context.collect(next++);
        }
      }
    }

    @Override
    public void cancel() {
      running = false;
    }

    @Override
    public List<Long> snapshotState(long checkpoint, long timestamp) {
      return Collections.singletonList(next);
    }

    @Override
    public void restoreState(List<Long> state) {
      next = state.stream().mapToLong(Long::longValue).sum();
    }
  }
}
