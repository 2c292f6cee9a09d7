package org.lunarsan.initiator;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Optional;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.login.ChapAnswer;
import org.lunarsan.iscsi.login.Credential;
import org.lunarsan.iscsi.login.Secret;

/**
 * Reads CHAP secrets from the options, a file, or the environment; never from a URL.
 *
 * <p>Threads: no state.
 */
final class Secrets {
    /** Smallest length of a secret: 96 bits. RFC 7143 §9.2.1. */
    static final int SECRET_BYTES_MIN = 12;
    /** Largest length of a secret read from a file. */
    static final int SECRET_BYTES_MAX = 255;

    private Secrets() {
    }

    /** Returns the credentials to prove and to require; empty without a user. */
    static Optional<ChapAnswer> answer(IscsiUrl url, IscsiOptions options) throws Failure {
        Optional<String> user = options.chapUser.or(url::user);
        if (options.chapUser.isPresent() && url.user().isPresent()
                && !options.chapUser.equals(url.user())) {
            throw wrong("the options and the URL name different CHAP users");
        }
        if (user.isEmpty()) {
            if (options.chapSecret.isPresent() || options.chapSecretFile.isPresent()
                    || options.mutualUser.isPresent()) {
                throw wrong("a CHAP secret without a user")
                        .hint("name it in the options, or write iscsi://NAME@HOST");
            }
            return Optional.empty();
        }
        byte[] secret = checked(ours(options), options);
        Credential initiator = new Credential(user.get(), new Secret(secret));
        Optional<Credential> target = Optional.empty();
        if (options.mutualUser.isPresent()) {
            byte[] theirs = checked(theirs(options), options);
            if (Arrays.equals(secret, theirs)) {
                throw wrong("the CHAP secret of the target is the same as that of the initiator")
                        .hint("use a different secret for the target, as RFC 7143 §9.2.1 requires");
            }
            target = Optional.of(new Credential(options.mutualUser.get(), new Secret(theirs)));
        }
        return Optional.of(new ChapAnswer(options.chapAlgorithms, initiator, target));
    }

    private static byte[] ours(IscsiOptions options) throws Failure {
        if (options.chapSecret.isPresent()) {
            return options.chapSecret.get();
        }
        if (options.chapSecretFile.isPresent()) {
            return read(options.chapSecretFile.get());
        }
        String variable = System.getenv(IscsiOptions.SECRET_VARIABLE);
        if (variable == null) {
            throw wrong("a CHAP user without a secret").hint("give a file with the secret, or the"
                    + " environment variable " + IscsiOptions.SECRET_VARIABLE);
        }
        return variable.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] theirs(IscsiOptions options) throws Failure {
        if (options.mutualSecret.isPresent()) {
            return options.mutualSecret.get();
        }
        return read(options.mutualSecretFile.orElseThrow());
    }

    /** One newline at the end of a file is not part of the secret. */
    private static byte[] read(Path file) throws Failure {
        byte[] bytes;
        try (InputStream in = Files.newInputStream(file)) {
            bytes = in.readNBytes(SECRET_BYTES_MAX + 2);
        } catch (IOException unreadable) {
            throw Failure.of(Kind.AUTHENTICATION,
                    "cannot read the CHAP secret in " + file + ": " + unreadable, unreadable);
        }
        int end = bytes.length;
        if (end > 0 && bytes[end - 1] == '\n') {
            end -= end > 1 && bytes[end - 2] == '\r' ? 2 : 1;
        }
        return Arrays.copyOf(bytes, end);
    }

    private static byte[] checked(byte[] secret, IscsiOptions options) throws Failure {
        if (secret.length == 0 || secret.length > SECRET_BYTES_MAX) {
            throw wrong("a CHAP secret has 1 to " + SECRET_BYTES_MAX + " bytes");
        }
        if (secret.length < SECRET_BYTES_MIN && !options.allowShortSecrets) {
            throw wrong("a CHAP secret of " + secret.length + " bytes can be found by brute force")
                    .hint("use " + SECRET_BYTES_MIN + " bytes or more, or allowShortSecrets");
        }
        return secret;
    }

    private static Failure wrong(String what) {
        return Failure.of(Kind.AUTHENTICATION, what);
    }
}
