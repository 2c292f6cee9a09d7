package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** URLs, with the same cases as the Rust crate. */
final class IscsiUrlTest {
    /** Goal: a formatted URL is parsed to the same URL. */
    @Test
    void textAndParsedFormAgree() {
        for (String text : List.of("iscsi://127.0.0.1:3260", "iscsi://[2001:db8::1]:3260",
                "iscsi://san.example:860/iqn.2026-11.org.example:vm/0",
                "iscsi://vm@[::1]:3260/iqn.2026-11.org.example:vm/16383",
                "iscsi://h:1/t/1?header_digest=crc32c",
                "iscsi://h:1/t/1?header_digest=none&data_digest=crc32c",
                "iscsi://[fe80::1%eth0]:3260")) {
            assertEquals(text, IscsiUrl.parse(text).toString());
        }
    }

    /** Goal: omitted parts have their defaults. */
    @Test
    void omittedPartsHaveDefaults() {
        IscsiUrl url = IscsiUrl.parse("ISCSI://[::1]/iqn.2026-11.org.example:vm/7");
        assertEquals(new IscsiUrl.Portal("::1", 3260), url.portal());
        assertEquals(7, url.unit().orElseThrow().lun());
        assertEquals(Optional.empty(), IscsiUrl.parse("iscsi://host/").unit());
    }

    /** Goal: invalid URLs are rejected with advice. */
    @Test
    void wrongOnesAreRefused() {
        for (String text : List.of("", "iscsi://", "http://host", "iscsi:host", "iscsi://host:0",
                "iscsi://host:+1", "iscsi://host:70000", "iscsi://host:99999999999",
                "iscsi://::1", "iscsi://[::1", "iscsi://[host]", "iscsi://[::1]x", "iscsi://[:]",
                "iscsi://host/target", "iscsi://host//0", "iscsi://host/target/x",
                "iscsi://host/target/16384", "iscsi://host/target/+1", "iscsi://host/target/0/1",
                "iscsi://host/" + "t".repeat(224) + "/0", "iscsi://host?x=1",
                "iscsi://host?header_digest=md5", "iscsi://@host",
                "iscsi://host?data_digest=none&data_digest=none", "iscsi://ho st",
                "iscsi://host\n", "iscsi://ho\u00a0st")) {
            IscsiUrlException wrong =
                    assertThrows(IscsiUrlException.class, () -> IscsiUrl.parse(text), text);
            assertFalse(wrong.hint().isEmpty());
        }
    }

    /** Goal: a secret in a URL is rejected, and the message does not repeat it. */
    @Test
    void secretsAreRefusedWithoutPrintingThem() {
        for (String text : List.of("iscsi://user%hunter2hunter2@host/target/0",
                "iscsi://user:hunter2hunter2@host/target/0",
                "iscsi://user%hunter2/hunter2@host/target/0", "iscsi://user%hunter2hunter2",
                "ISCSI://user%hunter2hunter2@host", "user%hunter2hunter2@host")) {
            IscsiUrlException wrong =
                    assertThrows(IscsiUrlException.class, () -> IscsiUrl.parse(text));
            assertFalse(wrong.toString().contains("hunter2"), text);
            assertTrue(wrong.hint().contains(IscsiOptions.SECRET_VARIABLE), text);
        }
    }

    /** Goal: a device needs a LUN. */
    @Test
    void aDeviceNeedsALun() {
        assertThrows(IscsiUrlException.class, () -> IscsiDevice.open("iscsi://host"));
    }
}
