import java.util.Properties;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.connectors.kafka.FlinkKafkaConsumer011;

/** Reads a topic from the group's offsets, or else from the log start offset. Arguments: testbed/flink/programs.py. */
public final class KafkaJob {
  private KafkaJob() {}

  public static void main(String[] args) throws Exception {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    env.setParallelism(Integer.parseInt(args[1]));
    env.enableCheckpointing(Long.parseLong(args[3]));
    Properties kafka = new Properties();
    kafka.setProperty("bootstrap.servers", args[4]);
    kafka.setProperty("group.id", args[6]);
    kafka.setProperty("auto.offset.reset", "earliest");
    // A fetch from a leader that is frozen, or a request to it for metadata, which name the new one, would block for
    // request.timeout.ms, 5 minutes; that must be longer than session.timeout.ms.
    kafka.setProperty("metadata.max.age.ms", "3000");
    kafka.setProperty("session.timeout.ms", "6000");
    kafka.setProperty("request.timeout.ms", "7000");
    FlinkKafkaConsumer011<String> source = new FlinkKafkaConsumer011<>(args[5], new SimpleStringSchema(), kafka);
    source.setStartFromGroupOffsets();
    Work.on(env.addSource(source).name("kafka-source").uid("source"), Long.parseLong(args[2]));
    env.execute(args[0]);
  }
}
