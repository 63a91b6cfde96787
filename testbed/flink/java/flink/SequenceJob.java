import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Counts without end, from the last checkpoint on. Arguments: see testbed/flink/programs.py. */
public final class SequenceJob {
  private SequenceJob() {}

  public static void main(String[] args) throws Exception {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    env.setParallelism(Integer.parseInt(args[1]));
    env.enableCheckpointing(Long.parseLong(args[3]));
    Work.on(env.fromSequence(0, Long.MAX_VALUE).name("sequence").uid("source"), Long.parseLong(args[2]));
    env.execute(args[0]);
  }
}
