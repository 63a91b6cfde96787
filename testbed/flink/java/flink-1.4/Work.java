import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.sink.DiscardingSink;

/** The jobs' work: spends a while on each record, and drops it. */
final class Work {
  private Work() {}

  static <T> void on(DataStream<T> records, long delayMs) {
    records
        .map(new Delay<T>(delayMs)).name("work").uid("work")
        .addSink(new DiscardingSink<Integer>()).name("sink").uid("sink");
  }

  private static final class Delay<T> implements MapFunction<T, Integer> {
    private final long delayMs;

    Delay(long delayMs) {
      this.delayMs = delayMs;
    }

    @Override
    public Integer map(T record) throws InterruptedException {
      Thread.sleep(delayMs);
      return record.hashCode();
    }
  }
}
