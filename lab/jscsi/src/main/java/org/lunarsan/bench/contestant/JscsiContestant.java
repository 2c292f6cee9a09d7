package org.lunarsan.bench.contestant;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.jscsi.initiator.Configuration;
import org.jscsi.initiator.Initiator;

/**
 * The published jSCSI (org.jscsi:initiator:2.2). It requires its settings as an XML file with a
 * schema beside it: both are created in a temporary folder, the schema from its own jar.
 *
 * <p>Created by {@link JscsiLoader}, which documents the additions. AuthMethod is left out of the
 * settings: jSCSI sends all of them in the operational stage of the login, where that key is not
 * allowed (RFC 7143 §12.1) and Lunar refuses it.
 *
 * <p>Threads: called by one.
 */
public final class JscsiContestant implements Contestant {
    /** Value of its own file of settings, whose other values except names are used as well. */
    static final int SEGMENT_BYTES_DEFAULT = 8192;

    /** Name under which it keeps the session. */
    private static final String ID = "bench";
    private static final String SETTINGS = """
            <?xml version="1.0" encoding="UTF-8"?>
            <configuration xmlns="http://www.jscsi.org/2006-09">
              <global>
                <DataDigest>None</DataDigest>
                <DataPDUInOrder>Yes</DataPDUInOrder>
                <DataSequenceInOrder>Yes</DataSequenceInOrder>
                <DefaultTime2Retain>20</DefaultTime2Retain>
                <DefaultTime2Wait>2</DefaultTime2Wait>
                <ErrorRecoveryLevel>0</ErrorRecoveryLevel>
                <FirstBurstLength>65536</FirstBurstLength>
                <HeaderDigest>None</HeaderDigest>
                <IFMarker>No</IFMarker>
                <IFMarkInt>2048</IFMarkInt>
                <ImmediateData>Yes</ImmediateData>
                <InitialR2T>Yes</InitialR2T>
                <InitiatorAlias>bench</InitiatorAlias>
                <InitiatorName>iqn.2026-11.org.lunarsan.bench:jscsi</InitiatorName>
                <MaxBurstLength>262144</MaxBurstLength>
                <MaxConnections>1</MaxConnections>
                <MaxOutstandingR2T>1</MaxOutstandingR2T>
                <MaxRecvDataSegmentLength>%d</MaxRecvDataSegmentLength>
                <OFMarker>No</OFMarker>
                <OFMarkInt>2048</OFMarkInt>
                <SessionType>Normal</SessionType>
              </global>
              <target id="%s" address="%s" port="%d">
                <TargetName>%s</TargetName>
              </target>
            </configuration>
            """;

    private final Initiator initiator;
    private final int blockSize;
    private final long blockCount;

    /**
     * Logs in.
     *
     * @param url {@code iscsi://HOST:PORT/TARGET/LUN}
     * @param segmentBytes MaxRecvDataSegmentLength
     * @throws Exception when it cannot
     */
    public JscsiContestant(String url, int segmentBytes) throws Exception {
        URI at = URI.create(url);
        String[] path = at.getPath().split("/");
        JscsiAttentions.setLun(Integer.parseInt(path[2]));
        Path folder = Files.createTempDirectory("lunar-bench-jscsi");
        try {
            Path settings = folder.resolve("jscsi.xml");
            Path schema = folder.resolve("jscsi.xsd");
            Files.writeString(settings,
                    SETTINGS.formatted(segmentBytes, ID, at.getHost(), at.getPort(), path[1]));
            extractSchema(schema);
            initiator = new Initiator(Configuration.create(schema.toFile(), settings.toFile()));
            Files.delete(settings);
            Files.delete(schema);
        } finally {
            Files.delete(folder);
        }
        initiator.createSession(ID);
        blockSize = Math.toIntExact(initiator.getBlockSize(ID));
        // It gives the last block's address for the count.
        blockCount = initiator.getCapacity(ID) + 1;
    }

    private static void extractSchema(Path to) throws IOException {
        try (InputStream from = Initiator.class.getResourceAsStream("/jscsi.xsd")) {
            if (from == null) {
                throw new IOException("jscsi.xsd is not in the jar of org.jscsi:initiator");
            }
            Files.copy(from, to);
        }
    }

    @Override
    public int blockSize() {
        return blockSize;
    }

    @Override
    public long blockCount() {
        return blockCount;
    }

    @Override
    public void read(long address, byte[] buffer) throws Exception {
        initiator.read(ID, ByteBuffer.wrap(buffer), Math.toIntExact(address), buffer.length);
    }

    @Override
    public void write(long address, byte[] buffer) throws Exception {
        initiator.write(ID, ByteBuffer.wrap(buffer), Math.toIntExact(address), buffer.length);
    }

    @Override
    public void close() throws Exception {
        initiator.closeSession(ID);
    }
}
