package org.lunarsan.pool;

import java.util.ArrayList;
import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Operation;

/**
 * The members of a pool as found: opened, their labels read and compared, each at its slot.
 * Confined to the thread that opens the pool.
 */
final class Assembly {
    /** A member that was found. */
    record Present(Device device, PoolLabel label) {}

    private final String pool;
    private final PoolKind kind;
    private final List<Device> opened = new ArrayList<>();
    private final List<DeviceException> failures = new ArrayList<>();
    /** Indexed by member; null: missing. */
    private Present[] members;
    /** A label of the highest generation. */
    private PoolLabel newest;

    private Assembly(String pool, PoolKind kind) {
        this.pool = pool;
        this.kind = kind;
    }

    /**
     * Opens devices and identifies them by their labels. If that fails, closes all of them again.
     *
     * @throws DeviceOpenException whose message says which device does not fit, and why
     */
    static Assembly open(String pool, PoolKind kind, List<Device> devices)
            throws DeviceException {
        Assembly assembly = new Assembly(pool, kind);
        boolean done = false;
        try {
            List<Present> found = assembly.readAll(devices);
            assembly.assemble(found);
            done = true;
            return assembly;
        } finally {
            if (!done) {
                assembly.closeAll();
            }
        }
    }

    private List<Present> readAll(List<Device> devices) throws DeviceException {
        List<Present> found = new ArrayList<>();
        for (Device device : devices) {
            if (opened.contains(device)) {
                throw refuse(device.name() + " was named twice");
            }
            try {
                device.open();
            } catch (DeviceException failure) {
                failures.add(failure);
                if (Thread.currentThread().isInterrupted()) {
                    // The member need not be missing: an interrupted thread may be unable to open a
                    // device.
                    throw refuse("the thread was interrupted while it opened " + device.name());
                }
                continue;
            }
            opened.add(device);
            switch (MemberArea.readLabel(device)) {
                case PoolLabel.None none -> throw refuse(device.name()
                        + " has no label of a pool: it is not a member, or was overwritten");
                case PoolLabel.Unusable bad -> throw refuse(
                        "the label of " + device.name() + " cannot be used: " + bad.why());
                case PoolLabel.Valid valid -> found.add(new Present(device, valid.label()));
            }
        }
        if (found.isEmpty()) {
            throw refuse("none of its members can be opened");
        }
        return found;
    }

    private void assemble(List<Present> found) throws DeviceException {
        newest = found.getFirst().label();
        String first = found.getFirst().device().name();
        members = new Present[newest.count()];
        for (Present present : found) {
            PoolLabel label = present.label();
            String name = present.device().name();
            if (!label.pool().equals(newest.pool())) {
                throw refuse(name + " is a member of pool " + label.pool() + ", " + first
                        + " of pool " + newest.pool() + ": they do not belong together");
            }
            if (label.kind() != kind) {
                throw refuse(name + " is a member of a pool that is " + label.kind() + ", not "
                        + kind);
            }
            if (!label.isSamePool(newest)) {
                throw refuse(name + " and " + first + " have labels with different pool geometry");
            }
            Present same = members[label.slot()];
            if (same != null) {
                throw refuse(name + " and " + same.device().name() + " both are member "
                        + label.slot() + ": one is a copy of the other, or both are one device");
            }
            members[label.slot()] = present;
            if (label.generation() > newest.generation()) {
                newest = label;
            }
        }
        refuseSplit();
    }

    /** Two parts that were each written without the other cannot be joined: both have new data. */
    private void refuseSplit() throws DeviceOpenException {
        for (Present present : members) {
            if (present == null) {
                continue;
            }
            if (!newest.descendsFrom(present.label())) {
                throw refuse(present.device().name() + " was written without the others, and they"
                        + " without it: decide which part is to be kept, and clear the label of"
                        + " the other");
            }
        }
    }

    /** True when a member is present and has all data, according to the newest label. */
    boolean isCurrent(int slot) {
        Present present = members[slot];
        return present != null && newest.current().get(slot)
                && present.label().generation() == newest.generation();
    }

    PoolLabel label() {
        return newest;
    }

    int count() {
        return members.length;
    }

    /** Returns null if the member is missing. */
    Present member(int slot) {
        return members[slot];
    }

    /** Throws unless each member that should be current is present. */
    void requireAll() throws DeviceOpenException {
        for (int slot = 0; slot < members.length; slot++) {
            if (members[slot] == null && newest.current().get(slot)) {
                throw refuse("member " + slot + " of " + members.length + " is missing");
            }
        }
    }

    DeviceOpenException refuse(String why) {
        DeviceOpenException refusal =
                new DeviceOpenException(pool, Operation.OPEN, why, null);
        failures.forEach(refusal::addSuppressed);
        return refusal;
    }

    void closeAll() {
        for (Device device : opened) {
            try {
                device.close();
            } catch (DeviceException ignored) {
                // The pool is refused for another reason, which is reported.
            }
        }
    }
}
