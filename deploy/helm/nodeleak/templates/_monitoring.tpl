{{/* The object for the Prometheus Operator in a file, with its values: (list $ "overlays/….yaml" .Values.podMonitor) */}}
{{- define "nodeleak.monitored" -}}
{{- $root := index . 0 }}
{{- $values := index . 2 }}
{{- $object := include "nodeleak.objects" . | fromYamlArray | first }}
{{- with $values.labels }}{{ $_ := mergeOverwrite $object.metadata.labels . }}{{ end }}
{{- include "nodeleak.annotate" (list $object.metadata $values.annotations) }}
{{- with $values.namespace }}{{ $_ := set $object.metadata "namespace" . }}{{ end }}
{{- toYaml $object }}
{{- end }}

{{/* A PodMonitor or a ServiceMonitor: (list $ "overlays/….yaml" .Values.podMonitor) */}}
{{- define "nodeleak.monitor" -}}
{{- $root := index . 0 }}
{{- $values := index . 2 }}
{{- $tls := $root.Values.tls }}
{{- $object := include "nodeleak.monitored" . | fromYaml }}
{{- with $values.namespace }}
  {{- $_ := set $object.spec "namespaceSelector" (dict "matchNames" (list (include "nodeleak.namespace" $root))) }}
{{- end }}
{{- range list "jobLabel" "podTargetLabels" }}
  {{- $name := . }}
  {{- with get $values $name }}{{ $_ := set $object.spec $name . }}{{ end }}
{{- end }}
{{- $_ := set $object.spec "sampleLimit" (int $values.sampleLimit) }}
{{- $endpoint := $object.spec.podMetricsEndpoints | default $object.spec.endpoints | first }}
{{- $_ := set $endpoint "interval" $values.interval }}
{{- with $values.scrapeTimeout }}{{ $_ := set $endpoint "scrapeTimeout" . }}{{ end }}
{{- $_ := set $endpoint "relabelings" (concat $endpoint.relabelings $values.relabelings) }}
{{- with $values.metricRelabelings }}{{ $_ := set $endpoint "metricRelabelings" . }}{{ end }}
{{- if $tls.secretName }}
  {{- $config := dict "ca" (dict "secret" (dict "name" $tls.secretName "key" "ca.crt")) "serverName" $tls.serverName }}
  {{- if $tls.clientCa }}
    {{- $_ := set $config "cert" (dict "secret" (dict "name" $tls.clientSecretName "key" "tls.crt")) }}
    {{- $_ := set $config "keySecret" (dict "name" $tls.clientSecretName "key" "tls.key") }}
  {{- end }}
  {{- $_ := set $endpoint "scheme" "https" }}
  {{- $_ := set $endpoint "tlsConfig" ($values.tlsConfig | default $config) }}
{{- else if $values.tlsConfig }}
  {{- fail "tlsConfig needs tls.secretName: without it, the port speaks plain HTTP" }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{/* What thresholds replace in expressions and descriptions, by alert: the text of the file, and the new one. */}}
{{- define "nodeleak.thresholds" -}}
{{- $values := .Values.prometheusRule }}
{{- with $values.thresholds }}
NodeleakLeakedAddresses:
  - [">= 0.05", ">= {{ divf .leakedPercent 100 }}"]
  - ["5% or more", "{{ .leakedPercent }}% or more"]
  - ["less than 5%", "less than {{ .leakedPercent }}%"]
  - ["< 0.2", "< {{ divf .freePercent 100 }}"]
  - ["less than 20%", "less than {{ .freePercent }}%"]
  - ["20% or more", "{{ .freePercent }}% or more"]
NodeleakRangeNearlyExhausted:
  - ["< 0.1)", "< {{ divf .nearlyExhaustedPercent 100 }})"]
  - ["Less than 10%", "Less than {{ .nearlyExhaustedPercent }}%"]
NodeleakRejectedPods:
  - [">= 100", ">= {{ .rejectedPods }}"]
{{- range list "NodeleakSourceDownManyNodes" "NodeleakAgentDownManyNodes" }}
{{ . }}:
  - [">= 5", ">= {{ $values.thresholds.manyNodes }}"]
  - ["> 0.02", "> {{ divf $values.thresholds.manyNodesPercent 100 }}"]
{{- end }}
{{- end }}
{{- with $values.nodesWithoutAgent }}
NodeleakNodesWithoutAgent:
  - ['kube_node_info{', {{ printf "kube_node_info{node!~%s, " (toJson .) | toJson }}]
{{- end }}
{{- end }}

{{/* A rule with its thresholds and the values of its alert; empty if it is disabled: (list $rule $values $thresholds) */}}
{{- define "nodeleak.alert" -}}
{{- $rule := index . 0 }}
{{- $values := index . 1 }}
{{- $own := get $values.alerts $rule.alert | default dict }}
{{- range get (index . 2) $rule.alert | default list }}
  {{- $_ := set $rule "expr" (replace (first .) (last .) $rule.expr) }}
  {{- $_ := set $rule.annotations "description" (replace (first .) (last .) $rule.annotations.description) }}
{{- end }}
{{- with $values.runbookUrl }}
  {{- $url := regexReplaceAllLiteral "^.*/" $rule.annotations.runbook_url (printf "%s/" (trimSuffix "/" .)) }}
  {{- $_ := set $rule.annotations "runbook_url" $url }}
{{- end }}
{{- $_ := mergeOverwrite $rule.labels $values.alertLabels ($own.labels | default dict) }}
{{- with $own.severity }}{{ $_ := set $rule.labels "severity" . }}{{ end }}
{{- with $own.for }}{{ $_ := set $rule "for" . }}{{ end }}
{{- if dig "enabled" true $own }}{{ toYaml $rule }}{{ end }}
{{- end }}

{{/* A PrometheusRule */}}
{{- define "nodeleak.rules" -}}
{{- $values := .Values.prometheusRule }}
{{- $object := include "nodeleak.monitored" (list . "overlays/prometheus-operator/prometheusrule.yaml" $values) | fromYaml }}
{{- $thresholds := include "nodeleak.thresholds" . | fromYaml }}
{{- $alerts := list }}
{{- range $group := $object.spec.groups }}
  {{- $rules := list }}
  {{- range .rules }}
    {{- if .alert }}
      {{- $alerts = append $alerts .alert }}
      {{- with include "nodeleak.alert" (list . $values $thresholds) | fromYaml }}{{ $rules = append $rules . }}{{ end }}
    {{- else }}
      {{- $rules = append $rules . }}
    {{- end }}
  {{- end }}
  {{- $_ := set $group "rules" $rules }}
{{- end }}
{{- range $name, $_ := $values.alerts }}
  {{- if not (has $name $alerts) }}
    {{- fail (printf "prometheusRule.alerts.%s: no such alert. There are %s" $name (join ", " (uniq $alerts))) }}
  {{- end }}
{{- end }}
{{- $groups := list }}
{{- range $object.spec.groups }}{{ if .rules }}{{ $groups = append $groups . }}{{ end }}{{ end }}
{{- with $values.extraRules }}{{ $groups = append $groups (dict "name" "nodeleak.extra" "rules" .) }}{{ end }}
{{- $_ := set $object.spec "groups" $groups }}
{{- toYaml $object }}
{{- end }}
