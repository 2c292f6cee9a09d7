/** Programs that show how the devices are used. */
package org.lunarsan.examples;
