package org.lunarsan.device.testkit;

import java.util.List;
import org.junit.jupiter.api.Nested;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.QueueOptions;

/** Transfers to every device of the module can be abandoned, for any inner device. */
class HangingDevicesTest {
    private static final long CACHE_BYTES = 1 << 20;

    @Nested
    class Adapter extends HangingContract {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) {
            return AsyncDevice.of(inside.getFirst());
        }
    }

    @Nested
    class AdapterOfCache extends HangingContract {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) {
            return AsyncDevice.of(new CachedDevice(inside.getFirst(), CACHE_BYTES));
        }
    }

    @Nested
    class AdapterOfCacheOfAdapter extends HangingContract {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) {
            return AsyncDevice.of(
                    new CachedDevice(AsyncDevice.of(inside.getFirst()), CACHE_BYTES));
        }
    }

    @Nested
    class Queue extends HangingContract {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) {
            return new CoalescingDevice(inside.getFirst());
        }
    }

    @Nested
    class QueueThatReadsAhead extends HangingContract {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) {
            return new CoalescingDevice(
                    inside.getFirst(), QueueOptions.DEFAULT.withPrefetchBytes(8 << 10));
        }
    }

    @Nested
    class QueueOfAdapter extends HangingContract {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) {
            return new CoalescingDevice(AsyncDevice.of(inside.getFirst()));
        }
    }

    @Nested
    class QueueOfCache extends HangingContract {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) {
            return new CoalescingDevice(new CachedDevice(inside.getFirst(), CACHE_BYTES));
        }
    }
}
