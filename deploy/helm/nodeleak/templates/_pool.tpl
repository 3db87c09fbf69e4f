{{/* On which nodes a DaemonSet runs if there are two, as an expression: those of the pool, or all others. Empty: there is one. */}}
{{- define "nodeleak.poolExpression" -}}
{{- if .Values.cleanupPool.enabled -}}
{{- $operator := ternary "In" "NotIn" (hasKey .Values "isCleanupPool") -}}
{{- $label := splitn "=" 2 .Values.cleanupPool.nodeLabel -}}
{{- dict "key" $label._0 "operator" $operator "values" (list $label._1) | toYaml -}}
{{- end -}}
{{- end }}

{{/* Add the pool to what a pod requires of its node, in place: (list $ $pod) */}}
{{- define "nodeleak.choosePool" -}}
{{- $pod := index . 1 }}
{{- with include "nodeleak.poolExpression" (index . 0) | fromYaml }}
  {{- $pool := . }}
  {{- $affinity := $pod.affinity | default dict }}
  {{- $node := $affinity.nodeAffinity | default dict }}
  {{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict }}
  {{- $terms := $required.nodeSelectorTerms | default (list dict) }}
  {{- range $terms }}
    {{- $_ := set . "matchExpressions" (append (.matchExpressions | default list) $pool) }}
  {{- end }}
  {{- $_ := set $required "nodeSelectorTerms" $terms }}
  {{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" $required }}
  {{- $_ := set $affinity "nodeAffinity" $node }}
  {{- $_ := set $pod "affinity" $affinity }}
{{- end }}
{{- end }}
