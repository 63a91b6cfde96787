import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** A persistent store that is slow to close, as a large RocksDB is; its task's checkpoint is written afterwards. */
final class SlowToClose implements KeyValueBytesStoreSupplier {
  private final KeyValueBytesStoreSupplier persistent;
  private final long closeMs;

  SlowToClose(String name, long closeMs) {
    persistent = Stores.persistentKeyValueStore(name);
    this.closeMs = closeMs;
  }

  @Override
  public String name() {
    return persistent.name();
  }

  @Override
  public String metricsScope() {
    return persistent.metricsScope();
  }

  @Override
  @SuppressWarnings("unchecked")
  public KeyValueStore<Bytes, byte[]> get() {
    KeyValueStore<Bytes, byte[]> store = persistent.get();
    if (closeMs == 0) {
      return store;
    }
    // A proxy, as the methods of a store differ between versions.
    Class<?>[] kind = {KeyValueStore.class};
    return (KeyValueStore<Bytes, byte[]>) Proxy.newProxyInstance(kind[0].getClassLoader(), kind, (self, method, values) -> {
      if (method.getName().equals("close")) {
        Thread.sleep(closeMs);
      }
      try {
        return method.invoke(store, values);
      } catch (InvocationTargetException failure) {
        throw failure.getCause();
      }
    });
  }
}
