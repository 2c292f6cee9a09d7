package org.lunarsan.pool;

import java.util.List;
import org.junit.jupiter.api.Nested;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.testkit.HangingContract;

/**
 * Transfers to pools with hanging members can be abandoned, with blocking and asynchronous members.
 */
class HangingPoolsTest {
    private static final int STRIPE_BLOCKS = 8;

    private abstract static class OfTwo extends HangingContract {
        @Override
        protected int innerDeviceCount() {
            return 2;
        }
    }

    /** Creates a mirror that waits for members without a limit: none is left out while all hang. */
    private static MirroredDevice mirror(List<? extends Device> members) throws DeviceException {
        Members.mirror(members);
        return MirroredDevice.of(members, MirrorOptions.DEFAULT.withMemberMillisMax(0));
    }

    private static StripedDevice stripes(List<? extends Device> members) throws DeviceException {
        StripedDevice.create(members, STRIPE_BLOCKS);
        return StripedDevice.of(members);
    }

    private static List<AsyncDevice> async(List<? extends Device> members) {
        return members.stream().map(AsyncDevice::of).toList();
    }

    @Nested
    class Mirror extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return AsyncDevice.of(mirror(inside));
        }
    }

    @Nested
    class MirrorOfAsync extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return AsyncDevice.of(mirror(async(inside)));
        }
    }

    @Nested
    class QueueOfMirror extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return new CoalescingDevice(mirror(inside));
        }
    }

    @Nested
    class CacheOfMirror extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return AsyncDevice.of(new CachedDevice(mirror(inside), 1 << 20));
        }
    }

    @Nested
    class MirrorOfQueues extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return AsyncDevice.of(mirror(inside.stream().map(CoalescingDevice::new).toList()));
        }
    }

    @Nested
    class Stripes extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return AsyncDevice.of(stripes(inside));
        }
    }

    @Nested
    class StripesOfAsync extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return AsyncDevice.of(stripes(async(inside)));
        }
    }

    @Nested
    class QueueOfStripes extends OfTwo {
        @Override
        protected AsyncDevice make(List<? extends Device> inside) throws DeviceException {
            return new CoalescingDevice(stripes(inside));
        }
    }
}
